"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const slider = byId("threshold"), picker = byId("method"), chart = byId("threshold-chart");
  const percent = (value) => (Number.isFinite(value) ? (100 * value).toFixed(1) + " %" : "–");
  const whole = (value) => Math.round(value).toLocaleString("en-US");
  let method = data.shown;

  function write(key, name, index) {
    const table = data.tables[name], accepted = table.accepted[index], errors = table.errors[index];
    byId("coverage-" + key).textContent = percent(accepted / data.samples);
    byId("accepted-" + key).textContent = whole(accepted) + " of " + whole(data.samples);
    byId("accuracy-" + key).textContent = percent(1 - errors / accepted);
    byId("errors-" + key).textContent = whole(errors);
    byId("expected-" + key).textContent = whole(table.expected[index]);
    byId("range-" + key).textContent = whole(table.low[index]) + " to " + whole(table.high[index]) + " if calibrated";
  }

  function spoken(name, index) {
    const table = data.tables[name], accepted = table.accepted[index], errors = table.errors[index];
    return name + ": " + percent(accepted / data.samples) + " accepted, " + percent(1 - errors / accepted) + " right, " +
      whole(errors) + " errors, " + whole(table.expected[index]) + " expected";
  }

  function place(key, name, index, redraw) {
    const table = data.tables[name], box = chart.dataset;
    const left = +box.left, right = +box.right, top = +box.top, bottom = +box.bottom, low = +box.low;
    const x = (value) => left + value * (right - left);
    const y = (value) => Math.min(bottom, bottom - ((value - low) / (1 - low)) * (bottom - top));
    const share = (i) => 1 - table.errors[i] / table.accepted[i];
    if (redraw) {
      const points = data.thresholds.map((t, i) => [t, share(i)]).filter((p) => Number.isFinite(p[1]));
      byId("line-" + key).setAttribute("points", points.map((p) => x(p[0]).toFixed(1) + "," + y(p[1]).toFixed(1)).join(" "));
    }
    const dot = byId("dot-" + key), here = share(index), at = x(data.thresholds[index]).toFixed(1);
    dot.style.display = Number.isFinite(here) ? "" : "none";
    dot.setAttribute("cx", at);
    if (Number.isFinite(here)) dot.setAttribute("cy", y(here).toFixed(1));
    byId("cursor").setAttribute("x1", at);
    byId("cursor").setAttribute("x2", at);
  }

  function update(redraw) {
    const index = +slider.value;
    byId("threshold-value").textContent = data.labels[index];
    const pairs = data.before === null ? [["after", method]] : [["before", data.before], ["after", method]];
    const words = ["at least " + data.labels[index] + " confidence"];
    for (const [key, name] of pairs) {
      write(key, name, index);
      place(key, name, index, redraw);
      words.push(spoken(name, index));
    }
    slider.setAttribute("aria-valuetext", words.join("; "));
  }

  function choose(name) {
    method = name;
    for (const block of document.querySelectorAll("[data-method]")) block.hidden = block.dataset.method !== name;
    for (const word of document.querySelectorAll(".method-name")) word.textContent = name;
    update(true);
  }

  slider.addEventListener("input", () => update(false));
  if (picker) {
    picker.addEventListener("change", () => choose(picker.value));
    picker.value = method;
  }
  choose(method);
})();
