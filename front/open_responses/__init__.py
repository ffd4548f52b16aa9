"""/v1/responses: OpenAI's newer interface, without memory: each request has its whole conversation.

`asks` has the fields that are taken; `turns` reads the items of a conversation; `answer` asks the ensemble;
`items` makes the events of what comes, and the response. See docs/responses.md.
"""
