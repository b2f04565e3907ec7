"""Base classes and field types of the API's models. Strings and lists are bounded, numbers are whole.

Decimals travel as strings, after the Kubernetes API conventions: no two languages print a float alike.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from controller.api import markers
from controller.names import STEP_MAX

DECIMAL_PATTERN = r"^[-+]?([0-9]{1,15}([.][0-9]{0,20})?|[.][0-9]{1,20})([eE][-+]?[0-9]{1,2})?$"
DNS_LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
CLAIM_PATH_PATTERN = r"^/[^\x00-\x1f\\]*$"
# No empty step, no capitals in the bucket, no escapes (two names for one prefix); no user before the bucket
# (credentials), no query, no port.
URI_PATTERN = r"^[a-z][a-z0-9+.-]{1,15}://[a-z0-9][a-z0-9._-]{0,62}(/[^\s?#@/%\\]+)*$"


class Spec(BaseModel):
    """Base of the fields that users write: an unknown field is an error, so that a misspelt one is seen."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class Status(BaseModel):
    """Base of the fields that the operator writes: fields of a newer version are skipped."""

    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=to_camel, populate_by_name=True)


def extra(*parts: markers.Extra) -> ConfigDict:
    """Return a model's configuration that carries schema extras of the object as a whole."""
    merged: dict[str, Any] = {}
    for part in parts:
        merged |= part
    return ConfigDict(json_schema_extra=merged)


DecimalString = Annotated[str, Field(pattern=DECIMAL_PATTERN, max_length=40)]
DnsLabel = Annotated[str, Field(pattern=DNS_LABEL_PATTERN, min_length=1, max_length=63)]
DnsSubdomain = Annotated[str, Field(pattern=DNS_SUBDOMAIN_PATTERN, min_length=1, max_length=253)]
Count = Annotated[int, Field(strict=True, ge=0, le=2**31 - 1, json_schema_extra=markers.INT32)]
Step = Annotated[int, Field(strict=True, ge=0, le=STEP_MAX, json_schema_extra=markers.INT64)]

# Status: written by the operator only, so lengths are all there is to hold.
Word = Annotated[str, Field(max_length=63)]
