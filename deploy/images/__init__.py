"""The images: `Dockerfile` with the targets `operator` and `trainer`, and what builds and loads them."""
