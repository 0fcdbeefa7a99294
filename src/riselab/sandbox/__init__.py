"""Quadratics with known curvature, where every statement of the theory can be measured."""
