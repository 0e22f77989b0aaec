"""What limits the step of SGD at given parameters: gradient noise and curvature."""
