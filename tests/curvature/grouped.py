"""Options of a diagnosis by name alone, put into the objects that take them."""

from dataclasses import fields

from risegrad.curvature import BatchLoss, Measurement


def grouped(**options):
    found = {}
    for name, kind in (("batch_loss", BatchLoss), ("measurement", Measurement)):
        own = {f.name for f in fields(kind)}
        found[name] = kind(**{key: options.pop(key) for key in own & set(options)})
    return options | found
