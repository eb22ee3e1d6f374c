"""Short requests with rules that programs check: a user's own task and critic on a real model."""
