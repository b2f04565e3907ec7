"""A FastAPI app without pages about itself."""

from __future__ import annotations

from fastapi import FastAPI


def bare_app() -> FastAPI:
    """Return an app that answers its own routes and no other."""
    return FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
