"""``python -m controller.extender``: run the extender until SIGTERM or SIGINT."""

from controller.extender.main import main

if __name__ == "__main__":
    raise SystemExit(main())
