"""What a trainer needs, and trainers that show it."""
