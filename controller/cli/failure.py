"""Ends of commands: the exit codes, and errors that say what to do next.

The codes are part of the interface (docs/use/cli.md): scripts tell by them what happened.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from controller.cli.terminal import say

if TYPE_CHECKING:
    from controller.kube.errors import ApiError


class Exit(IntEnum):
    """Exit codes of `evalstop`."""

    DONE = 0
    REFUSED = 1  # understood, but it cannot be; or a check (doctor, replay) found something wrong
    USAGE = 2  # wrong flags or arguments, or a file that cannot be used
    NOT_FOUND = 3  # no such job, pool, checkpoint or kind of resource
    FORBIDDEN = 4  # not logged in, or without the right
    UNREACHABLE = 5  # no kubeconfig, no API server, no answer
    TIMEOUT = 6  # --wait: not within the time given
    INTERRUPTED = 130


class Failure(Exception):
    """A command that cannot go on. ``next_step``: what the user does now, one line or several."""

    def __init__(self, code: Exit, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.next_step = next_step


Command = TypeVar("Command", bound=Callable[..., Any])


def command(function: Command) -> Command:
    """Wrap a command's function, so that failures become a message on stderr and an exit code."""

    @functools.wraps(function)
    def guarded(*arguments: Any, **options: Any) -> Any:
        try:
            result = function(*arguments, **options)
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where a reader that has gone is no error
            return result
        except Failure as failure:
            leave(failure)
        except KeyboardInterrupt:
            raise _exit(Exit.INTERRUPTED) from None
        except BrokenPipeError:
            # The reader (head, less) has seen enough; what Python flushes at its end must not complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise _exit(Exit.DONE) from None

    return guarded  # type: ignore[return-value]


def leave(failure: Failure) -> NoReturn:
    """Says what went wrong and what to do next, and ends the command."""
    tell(failure)
    raise _exit(failure.code)


def _exit(code: Exit) -> Exception:
    import typer

    return typer.Exit(code)


def tell(failure: Failure) -> None:
    """Says what went wrong and what to do next."""
    say(f"error: {failure.message}", err=True)
    for line in failure.next_step.splitlines():
        say(f"  next: {line}", err=True)


def of_api(error: ApiError, doing: str) -> Failure:
    """Return what a refused or failed call to the API server means to the caller. ``doing``: "list
    RLHFJobs"."""
    if error.status == 401:
        return Failure(
            Exit.FORBIDDEN,
            f"cannot {doing}: the API server does not know who you are ({error.message})",
            "log in to the cluster again; kubectl auth whoami tells who it takes you for",
        )
    if error.status == 403:
        return Failure(Exit.FORBIDDEN, f"cannot {doing}: {error.message}", _rights(error.message))
    if error.status == 404:
        return Failure(
            Exit.NOT_FOUND,
            f"cannot {doing}: the cluster does not have this kind of resource ({error.message})",
            "install EvalStop's CRDs: kubectl apply --server-side -f crds (or the Helm chart)\n"
            "evalstop doctor tells which are there",
        )
    if error.status == 409:
        return Failure(
            Exit.REFUSED, f"cannot {doing}: somebody else changed it just now", "run the command again"
        )
    if error.status in (400, 422) and (unknown := re.findall(r'unknown field \\?"([^"\\]+)', error.message)):
        return Failure(
            Exit.REFUSED,
            f"cannot {doing}: the cluster's CRD is older than this evalstop, it has no {', '.join(unknown)}",
            "kubectl apply --server-side --force-conflicts -f crds   (or: helm upgrade)\n"
            "evalstop doctor tells what it lacks",
        )
    if error.status == 400 and "HTTP request to an HTTPS server" in error.message:
        return Failure(
            Exit.UNREACHABLE,
            f"cannot {doing}: the API server speaks https, and its address in the kubeconfig begins with "
            "http://",
            "write https:// at the cluster's server: in the kubeconfig\n"
            "kubectl config view --minify shows which address is in use",
        )
    if error.status in (400, 422):
        return Failure(
            Exit.REFUSED, f"cannot {doing}: {error.message}", "mend the value that the message names"
        )
    if error.status == 0 and "certificate" in error.message.lower():
        return Failure(
            Exit.UNREACHABLE,
            f"cannot {doing}: a certificate is not valid ({error.message})",
            "expired, or of another cluster: get a new kubeconfig from whoever runs the cluster\n"
            "kubectl config view --raw --minify shows which certificates are in use",
        )
    if error.status == 0 or error.status >= 500 or error.status == 429:
        return Failure(
            Exit.UNREACHABLE,
            f"cannot {doing}: no answer from the API server ({error.message})",
            "see whether the cluster is up and the context is right: kubectl cluster-info",
        )
    return Failure(
        Exit.REFUSED, f"cannot {doing}: {error}", "evalstop doctor looks at the whole installation"
    )


USERS = "deploy/manifests/users.yaml"  # has the roles that carry the rights to EvalStop's own resources
_WHO = r'User "([^"]+)" cannot (\w+)'
_WHERE = r'in the namespace "([^"]+)"'
_LOOKS = ("get", "list", "watch")
_PLAIN = r"[\w.:@/+-]+"


def _rights(message: str) -> str:
    """Return what somebody with more rights runs, by the API server's own words of who lacks what, where."""
    who, where = re.search(_WHO, message), re.search(_WHERE, message)
    user, verb = (who[1], who[2]) if who else ("YOU", "")
    role = "view" if verb in _LOOKS else "edit"
    account = user.removeprefix("system:serviceaccount:")
    subject = f"--user={user}" if account == user else f"--serviceaccount={account}"
    if not re.fullmatch(_PLAIN, user):
        subject = "--user=YOU"
    name = "evalstop-" + (re.sub(r"[^a-z0-9]+", "-", account.lower()).strip("-") or "user")
    if "at the cluster scope" in message and verb not in ("", *_LOOKS):
        return "ask whoever runs the cluster to do it: a right in one namespace is not enough for it"
    if "at the cluster scope" in message:
        asked = f"the role {role} in the whole cluster"
        command = f"kubectl create clusterrolebinding {name} --clusterrole={role} {subject}"
    else:
        asked = f"the role {role} in that namespace"
        command = (
            f"kubectl create rolebinding {name} -n {where[1] if where else 'NAMESPACE'} "
            f"--clusterrole={role} {subject}"
        )
    lines = [f"ask whoever runs the cluster for {asked}, as in", command]
    if "evalstop.dev" in message:  # a role that is held already, and advised again, would cure nothing
        own = f"evalstop-{role}"
        lines.append(
            f"who has the role {role} already: ClusterRole {own} carries the right, and is not part of it "
            f"there; bind that one, by --clusterrole={own}; if there is none: kubectl apply -f {USERS}"
        )
    return "\n".join([*lines, "evalstop doctor lists what you may do"])
