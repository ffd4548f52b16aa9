#!/usr/bin/env bash
# The same by curl: the models, a streamed chat of OpenAI's interface, and an answer of Triton's own.
set -euo pipefail
openai=${OPENAI_BASE_URL:-http://127.0.0.1:9000/v1}
triton=${TRITON_HTTP_URL:-http://127.0.0.1:8000}
key="Authorization: Bearer ${OPENAI_API_KEY:-none}"

curl -fsS "$openai/models" -H "$key"
echo
curl -fsSN "$openai/chat/completions" -H "$key" -H "Content-Type: application/json" -d '{
  "messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 40, "stream": true}'
curl -fsS "$triton/v2/models/ensemble/generate" -d '{
  "messages": "[{\"role\": \"user\", \"content\": \"What is the capital of France?\"}]", "max_tokens": 40}'
echo
