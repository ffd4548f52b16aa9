"""/v1/fine_tuning/jobs: OpenAI's interface to the jobs that a server trains while it serves. They are those
of the command line (`commands.finetune`), in the same directory.
"""
