"""What a comparison of two ways of training must be: tuned, interior, judged on other seeds."""
