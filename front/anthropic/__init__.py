"""/v1/messages and /v1/messages/count_tokens: Anthropic's interface.

`asks` has the fields that are taken; `turns` reads messages, with their blocks; `answer` asks the ensemble
and makes messages and events of what comes; `errors` has their bodies. See docs/anthropic.md.
"""
