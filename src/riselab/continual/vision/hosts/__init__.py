"""Hosts: each a small file; ``HOSTS`` lists them by name."""

from collections.abc import Mapping

from riselab import plugins
from riselab.continual.vision.hosts.base import VisionHost
from riselab.continual.vision.hosts.classifiers import (
    AdapterClassifier,
    FineTune,
    LearnableClassifier,
    ZoFc,
    ZoFcRise,
)
from riselab.continual.vision.hosts.prototypes import Aper, Ease, SimpleCIL

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
