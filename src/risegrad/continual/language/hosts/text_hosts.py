"""All hosts in language by name."""

from __future__ import annotations

from risegrad.continual.language.hosts.label_encoder import LabelEncoder
from risegrad.continual.language.hosts.lora_hosts import IncLora, LanguageHost, OLora, SeqLora

HOSTS: dict[str, type[LanguageHost]] = {
    host.name: host for host in (SeqLora, IncLora, OLora, LabelEncoder)
}
