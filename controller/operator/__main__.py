"""``python -m controller.operator``: run the operator until SIGTERM or SIGINT."""

from controller.operator.main import main

if __name__ == "__main__":
    raise SystemExit(main())
