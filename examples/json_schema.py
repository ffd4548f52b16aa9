"""An answer that is JSON of a schema, which pydantic reads: at each token only those may come that fit.

Texts and numbers have bounds, so that the JSON is whole before `max_tokens` ends the answer.
"""

import os
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel, Field


class City(BaseModel):
    name: str = Field(max_length=20)
    country: str = Field(max_length=20)
    people: int = Field(ge=0, le=50_000_000)
    climate: Literal["cold", "mild", "hot"]


client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:9000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
answer = client.chat.completions.parse(
    model=client.models.list().data[0].id,
    messages=[{"role": "user", "content": "Describe the city of Oslo as JSON."}],
    response_format=City,
    max_tokens=500,
)
city = answer.choices[0].message.parsed
assert city is not None
print(city.model_dump_json(indent=2))
