"""The needs of a trainer, and trainers that show them."""
