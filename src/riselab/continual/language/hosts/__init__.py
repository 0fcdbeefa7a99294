"""All hosts in language by name."""

from __future__ import annotations

from collections.abc import Mapping

from riselab import plugins
from riselab.continual.language import SUMMARIES
from riselab.continual.language.hosts.label_encoder import LabelEncoder, OLabelEncoder
from riselab.continual.language.hosts.lora import IncLora, LanguageHost, OLora, SeqLora

_ALL: tuple[type[LanguageHost], ...] = (SeqLora, IncLora, OLora, LabelEncoder, OLabelEncoder)
plugins.HOSTS.bring({host.name: host for host in _ALL}, SUMMARIES)
HOSTS: Mapping[str, type[LanguageHost]] = plugins.RegisterPart(
    plugins.HOSTS, lambda host: issubclass(host, LanguageHost)
)
"""The hosts in language, those of plugins too."""
