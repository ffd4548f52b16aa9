"""The front: the HTTP interfaces of OpenAI and Anthropic to the ensemble, in a process of its own.

The launcher starts it (`python -m front RUN_DIRECTORY`) and starts it again if it ends. It asks Triton over
gRPC on this host, with the client's own messages. It imports no torch. Nothing imports it. See
docs/openai.md.

`app` has the routes; `asks` and `fields` read a body; `chat` and `completions` are OpenAI's two older
interfaces, `open_responses` its newer one, `anthropic` Anthropic's; each makes a conversation fit the
model's template (`python_backends/text/door/fitting.py`); `parts` finds thoughts and calls in answers,
`guided` says what they must be; `answers` asks the ensemble, by `lasting`, which goes on after the death of
the server; `responses` sends what came, and finds out when a client leaves. `connections` are the clients';
`observed` is around all of it: ids, the log, metrics, and what `queue` says of those that wait.
"""
