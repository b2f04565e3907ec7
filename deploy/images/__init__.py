"""The images: `roles.py` says what each holds, `Dockerfile` fills their layers, `build.py` makes them.

May import: `controller.names`; of `deploy.local` errors and the table of stand-in images.
Tests: tests/chart.
"""
