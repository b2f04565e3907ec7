"""``python -m controller.operator``: run the operator until SIGTERM or SIGINT."""

from controller.operator.process.lazy_imports import leave_out

if __name__ == "__main__":
    leave_out()
    from controller.operator.main import main

    raise SystemExit(main())
