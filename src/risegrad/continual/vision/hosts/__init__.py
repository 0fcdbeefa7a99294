"""Hosts: each a small file; ``HOSTS`` lists them by name."""

from collections.abc import Mapping

from risegrad import plugins
from risegrad.continual.vision.hosts.adapter_classifier import AdapterClassifier
from risegrad.continual.vision.hosts.aper import Aper
from risegrad.continual.vision.hosts.ease import Ease
from risegrad.continual.vision.hosts.fine_tune import FineTune
from risegrad.continual.vision.hosts.learnable_classifier import LearnableClassifier
from risegrad.continual.vision.hosts.simple_cil import SimpleCIL
from risegrad.continual.vision.hosts.vision_host import VisionHost
from risegrad.continual.vision.hosts.zo_fc import ZoFc, ZoFcRise

_ALL: tuple[type[VisionHost], ...] = (
    LearnableClassifier,
    AdapterClassifier,
    Aper,
    Ease,
    ZoFc,
    ZoFcRise,
    SimpleCIL,
    FineTune,
)
plugins.HOSTS.bring({host.name: host for host in _ALL}, {h.name: h.summary for h in _ALL})
HOSTS: Mapping[str, type[VisionHost]] = plugins.RegisterPart(
    plugins.HOSTS, lambda host: issubclass(host, VisionHost)
)
