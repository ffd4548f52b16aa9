// A chat whose answer is printed as it comes, in JavaScript, without a package: node examples/chat.mjs
const base = process.env.OPENAI_BASE_URL ?? "http://127.0.0.1:9000/v1";
const answer = await fetch(`${base}/chat/completions`, {
  method: "POST",
  headers: {
    "content-type": "application/json",
    authorization: `Bearer ${process.env.OPENAI_API_KEY ?? "none"}`,
  },
  body: JSON.stringify({
    messages: [{ role: "user", content: "What is the capital of France?" }],
    max_tokens: 100,
    stream: true,
  }),
});
if (!answer.ok) throw new Error(await answer.text());

let begun = ""; // a line whose end has not come yet
for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) {
  const lines = (begun + piece).split("\n");
  begun = lines.pop();
  for (const line of lines) {
    if (!line.startsWith("data: {")) continue; // a comment, an empty line, or [DONE]
    const chunk = JSON.parse(line.slice("data: ".length));
    if (chunk.error) throw new Error(chunk.error.message);
    process.stdout.write(chunk.choices[0].delta.content ?? "");
  }
}
console.log();
