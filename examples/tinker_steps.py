"""An adapter is trained step by step by Tinker's SDK (`pip install tinker`), on a server of one's own, and
then sampled from. The server needs `make serve SET=adapters.directory=adapters`.
"""

import os

os.environ.setdefault("TINKER_TELEMETRY", "0")  # no reports

import httpx
import tinker

WORDS = ["river", "engine", "violin", "bread", "winter", "library", "copper", "garden"]
url = os.environ.get("TINKER_BASE_URL", "http://127.0.0.1:9000")
key = os.environ.get("TINKER_API_KEY", "tml-none")  # begins with tml-
server = httpx.Client(base_url=url, headers={"x-api-key": key})


def tokens(**what):
    return server.post("/tokenize", json=what).json()["tokens"]


def prompt(word):
    return tokens(messages=[{"role": "user", "content": f"Shout: {word}"}])


def datum(word):
    """The answer is learned: the target of each token is the next one."""
    asked, answer = prompt(word), tokens(prompt=word.upper())
    whole = asked + answer
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(whole[:-1]),
        loss_fn_inputs={
            "target_tokens": whole[1:],
            "weights": [0.0] * (len(asked) - 1) + [1.0] * len(answer),
        },
    )


service = tinker.ServiceClient(base_url=url, api_key=key)
model = server.get("/v1/models").json()["data"][0]["id"]
trained = service.create_lora_training_client(model, rank=8, seed=1, train_unembed=False).result()
data = [datum(word) for word in WORDS]
for _ in range(6):
    passed = trained.forward_backward(data, "cross_entropy")
    trained.optim_step(tinker.AdamParams(learning_rate=2e-3)).result()
    print(f"loss: {passed.result().metrics['loss:sum']:.2f}")

sampler = trained.save_weights_and_get_sampling_client().result()
asked = tinker.ModelInput.from_ints(prompt("river"))
found = sampler.sample(asked, 2, tinker.SamplingParams(max_tokens=5, temperature=0.0)).result()
for sequence in found.sequences:
    text = server.post("/detokenize", json={"tokens": sequence.tokens}).json()["prompt"]
    print(f"river: {text} ({sum(sequence.logprobs):.2f})")
service.close("success").result()
