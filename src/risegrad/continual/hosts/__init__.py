"""Hosts: each a small file; ``HOSTS`` lists them by name."""

from risegrad.continual.hosts.adapter_classifier import AdapterClassifier
from risegrad.continual.hosts.aper import Aper
from risegrad.continual.hosts.ease import Ease
from risegrad.continual.hosts.learnable_classifier import LearnableClassifier
from risegrad.continual.hosts.simple_cil import SimpleCIL
from risegrad.continual.hosts.vision import VisionHost
from risegrad.continual.hosts.zo_fc import ZoFc, ZoFcRise

_ALL: tuple[type[VisionHost], ...] = (
    LearnableClassifier,
    AdapterClassifier,
    Aper,
    Ease,
    ZoFc,
    ZoFcRise,
    SimpleCIL,
)
HOSTS: dict[str, type[VisionHost]] = {host.name: host for host in _ALL}
