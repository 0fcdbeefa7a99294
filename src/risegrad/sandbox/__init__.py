"""Quadratics with known curvature, where every statement of the theory can be measured.

``problem`` and ``spectrum`` say what is studied, ``simulate`` draws, the panel modules measure,
``trajectory`` follows many steps exactly, ``figures`` draws and ``report`` writes the record.
"""
