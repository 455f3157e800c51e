"use strict";
// The roofline: useful work a second over bytes of device memory, both on logarithmic axes.

(() => {
  const data = JSON.parse(document.getElementById("data").textContent).roofline;
  const place = document.querySelector("#roofline figure");
  if (!place || !data) return;
  const LEFT = 58, RIGHT = 600, TOP = 16, BOTTOM = 270;
  const ridge = data.peak / data.bandwidth;
  const low = Math.min(data.intensity, ridge) / 8, high = Math.max(data.intensity, ridge) * 8;
  const top = data.peak * 2, floor = Math.min(data.tflops / 2, low * data.bandwidth);
  const along = (value, from, to) => Math.log(value / from) / Math.log(to / from);
  const x = (value) => LEFT + along(value, low, high) * (RIGHT - LEFT);
  const y = (value) => BOTTOM - along(value, floor, top) * (BOTTOM - TOP);
  const svg = node("svg", { viewBox: "0 0 620 312", role: "img", "aria-label": data.text });

  function node(name, attributes, text = "") {
    const found = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.entries(attributes).forEach(([key, value]) => found.setAttribute(key, value));
    found.textContent = text;
    return found;
  }

  function* powers(from, to) {
    for (let at = 10 ** Math.ceil(Math.log10(from)); at <= to; at *= 10) yield at;
  }

  function write(at, above, text, anchor = "middle", kind = "quiet") {
    svg.append(node("text", { x: at, y: above, "text-anchor": anchor, class: kind }, text));
  }

  for (const value of powers(low, high)) {
    svg.append(node("path", { d: `M${x(value)} ${TOP}V${BOTTOM}`, stroke: "var(--rule)" }));
    write(x(value), BOTTOM + 16, value);
  }
  for (const value of powers(floor, top)) {
    svg.append(node("path", { d: `M${LEFT} ${y(value)}H${RIGHT}`, stroke: "var(--rule)" }));
    write(LEFT - 6, y(value) + 4, value, "end");
  }
  svg.append(node("path", { d: `M${x(low)} ${y(low * data.bandwidth)}L${x(ridge)} ${y(data.peak)}H${RIGHT}`, fill: "none", stroke: "var(--full)", "stroke-width": 2.5 }));
  svg.append(node("circle", { cx: x(data.intensity), cy: y(data.tflops), r: 6, fill: "var(--multiply)" }));
  const right = x(data.intensity) > RIGHT - 160;
  write(x(data.intensity) + (right ? -12 : 12), y(data.tflops) + 18, data.label, right ? "end" : "start", "");
  write(RIGHT, y(data.peak) - 8, `tensor cores ${data.peak.toLocaleString("en-US")} TFLOPS`, "end", "");
  write(x(low) + 6, y(low * data.bandwidth) - 22, `device memory ${data.bandwidth} TB/s`, "start", "");
  write((LEFT + RIGHT) / 2, BOTTOM + 36, "useful FLOP a byte of device memory");
  svg.append(node("text", { transform: `translate(12 ${(TOP + BOTTOM) / 2}) rotate(-90)`, "text-anchor": "middle", class: "quiet" }, "TFLOPS"));
  place.prepend(svg);
})();
