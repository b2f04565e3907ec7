"""The images: `roles.py` says what each holds, `Dockerfile` fills their layers, `build.py` makes them."""
