"""Labels that nodes are started with: what is read, and what is refused before anything starts."""

import pytest

from deploy.local import nodelabels


def test_what_is_read() -> None:
    given = ["evalstop.dev/gpu-pool=research", "empty=", "node.kubernetes.io/instance-type=a.b_c-1"]
    assert nodelabels.parse(given) == {
        "evalstop.dev/gpu-pool": "research",
        "empty": "",
        "node.kubernetes.io/instance-type": "a.b_c-1",
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["pool"], "'pool': expected key=value"),
        (["=x"], "'': expected a key"),
        (["a/b/c=x"], "'a/b/c': expected a key"),
        (["Bad.Domain/x=y"], "'Bad.Domain/x': expected a key"),
        (["a=two words"], "a='two words': a value is at most 63"),
        ([f"a={'x' * 64}"], "a value is at most 63"),
        (["a=1", "a=2"], "'a=2': a is '1' already"),
        (
            ["node-restriction.kubernetes.io/pool=x"],
            "kubectl label node --all node-restriction.kubernetes.io",
        ),
        (["gpu.k8s.io/kind=x"], "a node may not set it on itself"),
    ],
)
def test_what_is_refused(given: list[str], words: str) -> None:
    with pytest.raises(ValueError, match="label") as caught:
        nodelabels.parse(given)
    assert words in str(caught.value)
