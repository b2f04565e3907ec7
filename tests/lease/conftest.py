"""Fixtures of the election's tests: the operator's rig and its nodes."""

from tests.support.rig_fixtures import installed, kubelet, rig

__all__ = ["installed", "kubelet", "rig"]
