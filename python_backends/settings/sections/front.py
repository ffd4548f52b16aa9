"""[front]: the interface of OpenAI, in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import setting


@dataclass(frozen=True, slots=True)
class FrontSettings:
    port: int = setting(
        9000, "of the interface of OpenAI, /v1 (docs/openai.md), on server.address; 0: none", 0, 65535
    )
    processes: int = setting(
        1,
        "front processes on that port, each with one thread: more for more than a few hundred streams; the"
        " kernel divides the connections among them",
        1,
        16,
    )
    directory: str = setting(
        "run/front",
        "what outlives the front: uploaded files, batches with their answers, and corrections (docs/jobs.md);"
        " relative to this folder",
    )
    model_names: str = setting(
        "",
        "what clients of /v1 call the model, in place of its directory's name; several joined by commas:"
        " answers to requests without a name have the first; empty: its directory's name",
    )
    api_keys: str = setting(
        "",
        "file with the keys that clients of /v1 may have, one in each line, relative to this folder;"
        " GAPLESS_API_KEY is one more",
    )
    without_key: bool = setting(
        False,
        "true: without a key, too, it starts on an address that other hosts reach",
    )
    tls_certificate: str = setting(
        "",
        "file with the certificate chain of https, PEM, relative to this folder; read again within a minute"
        " when it has changed; empty: http",
    )
    tls_key: str = setting("", "file with its private key, PEM; empty: it is in the file of the certificate")
    allowed_origins: str = setting(
        "",
        "origins whose pages may ask from a browser (CORS), joined by commas: https://chat.example.org; *:"
        " any; empty: none",
    )
    corrections: int = setting(
        0,
        "after so many new corrections of answers (/v1/feedback) an adapter is trained on them; 0: none are"
        " taken (docs/jobs.md)",
        0,
        1000,
    )
    log_requests: bool = setting(
        True, "true: one line of JSON in the log for each request, without its text (docs/openai.md)"
    )
    demo: bool = setting(
        False,
        "true: the page at / has a button that kills an instance, to show that answers go on (docs/page.md)",
    )
