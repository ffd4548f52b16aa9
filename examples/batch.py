"""Many prompts at the same time, with asyncio: the server answers them in one batch."""

import asyncio
import os

from openai import AsyncOpenAI

WORDS = ["river", "engine", "violin", "bread", "winter", "library", "copper", "garden"]


async def main():
    client = AsyncOpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:9000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        max_retries=5,  # a full queue answers 429 and says when to come again
    )
    model = (await client.models.list()).data[0].id

    async def answer(word):
        messages = [{"role": "user", "content": f"Write one short sentence with the word {word}."}]
        made = await client.chat.completions.create(model=model, messages=messages, max_tokens=40)
        return made.choices[0].message.content

    for word, text in zip(WORDS, await asyncio.gather(*map(answer, WORDS)), strict=True):
        print(f"{word}: {' '.join(text.split())}")


asyncio.run(main())
