"""What several benchmarks use: works, their times, models, prompts, streams over HTTP, recorded engines."""
