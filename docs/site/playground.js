// The playground: two lists choose the run that is shown. The address has the choice: #3.2 is the second variant of the
// third entry.

(() => {
  const { lessons } = JSON.parse(document.getElementById("data").textContent);
  const [tutorial, variant] = ["tutorial", "variant"].map((name) => document.getElementById(name));
  const parts = [...document.querySelectorAll("[data-run]")];
  const firsts = lessons.map((_, at) => lessons.slice(0, at).reduce((sum, each) => sum + each.runs.length, 0));

  const fill = (list, titles) => list.replaceChildren(...titles.map((title, at) => new Option(title, at)));

  function choose(lesson, run) {
    tutorial.value = lesson;
    fill(variant, lessons[lesson].runs.map((each) => each.title));
    variant.value = run;
    show();
  }

  function show() {
    const lesson = Number(tutorial.value), at = Number(variant.value), run = lessons[lesson].runs[at];
    parts.forEach((part) => { part.hidden = Number(part.dataset.run) !== firsts[lesson] + at; });
    document.getElementById("chosen").textContent = `${lessons[lesson].title}, ${run.title}: ${run.verdict}`;
    const lanes = Boolean(run.timeline.lanes), empty = document.getElementById("no-timeline");
    empty.hidden = lanes;
    empty.textContent = lanes ? "" : "No timeline: the launch fails, as the verdict says.";
    empty.nextElementSibling.hidden = !lanes;
    if (lanes) timeline.load(run.timeline);
    history.replaceState(null, "", `#${lesson}.${at}`);
  }

  function read() {
    const [lesson, run] = location.hash.slice(1).split(".").map(Number);
    choose(...(lessons[lesson] && lessons[lesson].runs[run] ? [lesson, run] : [0, 0]));
  }

  fill(tutorial, lessons.map((each) => each.title));
  tutorial.addEventListener("change", () => choose(Number(tutorial.value), 0));
  variant.addEventListener("change", show);
  addEventListener("hashchange", read);
  read();
})();
