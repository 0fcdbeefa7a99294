"""Products with the curvature of a loss: Hessian, Gauss-Newton, Fisher, dense."""
