"""HTTP faces of the operator for people and programs: today the queue positions, on demand."""
