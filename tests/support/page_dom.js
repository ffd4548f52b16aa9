// Runs the script of the page without a browser: as much of a document as the script uses, and a server that
// answers as it is told. Reads {script, ids, answers} as JSON: `answers` are lists of texts by path, each a
// part of the body. `key`: what the server asks for; `typed`: what its reader types into the dialog, one after
// the other ("": cancels, and sends the message); `late`: parts of /glance that come once the message is sent,
// before its answer does. Writes what the page shows as JSON.
"use strict";
const given = JSON.parse(require("fs").readFileSync(0, "utf8"));

class Node {
  constructor(tag) {
    Object.assign(this, {tag, children: [], parent: null, listeners: {}, attributes: {}, style: {}, dataset: {}, hidden: false,
      className: "", value: "", id: "", open: false, scrollHeight: 0, scrollTop: 0, clientHeight: 0, clientWidth: 300});
    this.classList = {toggle: (name, is) => { this.className = is ? name : ""; }};
  }
  get textContent() { return this.children.map((each) => typeof each === "string" ? each : each.textContent).join(""); }
  set textContent(text) { this.replaceChildren(text); }
  get lastChild() { return this.children.at(-1); }
  _adopt(content) {
    for (const each of content) if (each instanceof Node) { each.remove(); each.parent = this; }
    return content;
  }
  append(...content) { this.children.push(...this._adopt(content)); }
  prepend(...content) { this.children.unshift(...this._adopt(content)); }
  before(...content) { this.parent.children.splice(this.parent.children.indexOf(this), 0, ...this.parent._adopt(content)); }
  replaceChildren(...content) { this.children = this._adopt(content); }
  remove() { if (this.parent) this.parent.children = this.parent.children.filter((each) => each !== this); this.parent = null; }
  setAttribute(name, value) { this.attributes[name] = value; }
  removeAttribute(name) { delete this.attributes[name]; }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  fire(name, more = {}) { return this.listeners[name]({preventDefault() {}, ...more}); }
  *all() { for (const each of this.children) if (each instanceof Node) { yield each; yield* each.all(); } }
  querySelectorAll(wanted) { return [...this.all()].filter((each) => wanted[0] === "." ? each.className.split(" ").includes(wanted.slice(1)) : each.tag === wanted); }
  querySelector(wanted) { return this.querySelectorAll(wanted)[0] ?? null; }
  getContext() { return new Proxy({}, {get: () => () => undefined, set: () => true}); }
  scrollIntoView() {}
  focus() {}
  showModal() { this.open = true; }
  close() { this.open = false; }
  requestSubmit() { return this.fire("submit"); }
}

const CHAT = "/v1/chat/completions";
const body = new Node("body"), asked = [];
let note = null;  // below the answer, after the late parts
for (const [id, tag] of Object.entries(given.ids)) { const made = new Node(tag); made.id = id; body.append(made); }
Object.assign(globalThis, {
  document: {hidden: false, documentElement: body, addEventListener() {}, createElement: (tag) => new Node(tag),
    getElementById: (id) => [...body.all()].find((each) => each.id === id) ?? null},
  matchMedia: () => ({matches: false}), getComputedStyle: () => ({getPropertyValue: () => "#000"}), devicePixelRatio: 1,
  addEventListener() {}, location: {origin: "http://here"},
  async fetch(path, options = {}) {
    asked.push({path, headers: options.headers, body: options.body ? JSON.parse(options.body) : null});
    const known = Object.keys(given.answers).find((each) => path.startsWith(each));
    if (given.key && options.headers?.authorization !== `Bearer ${given.key}`) return new Response("{}", {status: 401});
    if (!known) return new Response(JSON.stringify({error: {message: "not there"}}), {status: 404});
    const parts = path === "/glance" ? given.answers[known].splice(0) : given.answers[known], encoder = new TextEncoder();
    const stream = new ReadableStream({async start(out) {
      if (path === CHAT && given.late) await until(() => note !== null);
      for (const part of parts) { out.enqueue(encoder.encode(part)); await wait(5); }
      if (path !== "/glance") return out.close();  // the page looks on
      if (!given.late) return;
      await until(() => asked.some((each) => each.path === CHAT));
      for (const part of given.late) { out.enqueue(encoder.encode(part)); await wait(50); }
      note = body.querySelector(".answer").children[2].textContent;
    }});
    return new Response(stream);
  },
});
const at = (id) => document.getElementById(id), wait = (ms) => new Promise((done) => setTimeout(done, ms));
async function until(what) { while (!what()) await wait(5); }

function send() {
  at("text").value = given.message;
  at("ask").fire("submit");
}

async function main() {
  (0, eval)(given.script);
  if (given.rekey) at("rekey").fire("click");
  const typed = given.typed ?? (given.key ? [given.key] : []), titles = [];
  for (const text of typed) {
    await until(() => at("keybox").open);
    titles.push(at("key-title").textContent);
    at("key").value = text;
    at(text ? "keyform" : "nokey").fire(text ? "submit" : "click");
    if (text) continue;
    await until(() => at("state").textContent === "the server asks for a key");
    send();
  }
  await until(() => at("events").children.length >= given.num_events && at("model").textContent);
  const kills = body.querySelectorAll(".kill");
  if (given.kills) kills[0].fire("click");
  if (given.message) {
    if (!typed.includes("")) send();
    await until(() => body.querySelectorAll(".turn").length === 2 && !("aria-busy" in body.querySelectorAll(".turn")[1].attributes));
    await until(() => !body.querySelector(".answer") || body.querySelector(".answer").children.at(-1).textContent);
  }
  const lane = (row) => Object.fromEntries(["fill", "fan", "range", "mean"].map((part) => [part, row.querySelector(`.${part}`).style]));
  process.stdout.write(JSON.stringify({
    asked, note, titles, texts: Object.fromEntries([...body.all()].filter((each) => each.id).map((each) => [each.id, each.textContent])),
    hidden: [...body.all()].filter((each) => each.id && each.hidden).map((each) => each.id),
    rows: body.querySelectorAll(".row").map((row) => ({name: row.className, text: row.querySelector(".says").textContent, lane: lane(row)})),
    turns: body.querySelectorAll(".turn").map((turn) => turn.children.map((each) => each.textContent)),
    waiting: at("waiting").children.map((each) => each.textContent), kills: kills.map((each) => each.hidden), key: at("key").value,
  }));
  process.exit(0);
}
main();
