(async () => {
  "use strict";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // -- tables sort without any library ---------------------------------------------------------

  for (const table of all("table")) {
    const heads = all("thead th", table);
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const descending = head.getAttribute("aria-sort") === "ascending"
          || (column > 0 && !head.hasAttribute("aria-sort"));
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        const body = table.tBodies[0];
        const numeric = [...body.rows].some((row) => isNumber(row.cells[column]));
        const rows = [...body.rows].sort((a, b) => {
          const x = key(a.cells[column], numeric), y = key(b.cells[column], numeric);
          if (x === null || y === null) return (x === null) - (y === null); // nothing comes last
          return (x < y ? -1 : x > y ? 1 : 0) * (descending ? -1 : 1);
        });
        body.append(...rows);
      });
    });
  }

  function isNumber(cell) {
    return cell.dataset.value !== undefined && !Number.isNaN(Number(cell.dataset.value));
  }

  function key(cell, numeric) {
    if (numeric) return isNumber(cell) ? Number(cell.dataset.value) : null;
    const text = cell.textContent.trim();
    return text === "–" ? null : text;
  }

  // -- data and plotly come compressed inside this page ----------------------------------------

  async function unpack(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  let groups;
  try {
    groups = JSON.parse(await unpack("data"));
    const script = document.createElement("script");
    script.textContent = await unpack("library");
    document.head.append(script);
  } catch (error) {
    for (const plot of all(".plot")) plot.textContent = `This browser cannot draw the figure (${error.message}); the tables are complete.`;
    return;
  }

  // -- what is chosen --------------------------------------------------------------------------

  const hidden = new Set(); // methods
  const views = {}; // figure -> number of its view
  const picked = groups.map(() => null); // per group: a client
  const drawn = new Set(); // plots that have been on the screen
  const coarse = matchMedia("(pointer: coarse)").matches;
  const config = {
    responsive: true,
    displaylogo: false,
    modeBarButtons: [["toImage", "resetScale2d"]],
  };
  const font = { family: getComputedStyle(document.body).fontFamily, size: 13 };
  const hover = { bgcolor: "#22272c", bordercolor: "#22272c", font: { color: "#fff", family: font.family } };

  function groupOf(element) {
    return Number(element.closest("[data-group]").dataset.group);
  }

  function draw(plot) {
    const { figure, panel } = plot.dataset;
    const index = groupOf(plot);
    const spec = groups[index].figures[figure][panel][views[figure] || 0];
    const shapes = [];
    const data = spec.data.map((trace) => shown(trace, picked[index], shapes));
    plot.toggleAttribute("data-heat", data.some((trace) => trace.type === "heatmap"));
    render(plot, data, { ...spec.layout, shapes });
    const legend = plot.closest("figure").querySelector(".legend");
    if (legend) legend.hidden = !spec.data.some((trace) => typeof trace.meta === "string");
    if (!drawn.has(plot)) {
      drawn.add(plot);
      plot.on("plotly_click", (event) => pick(index, clientOf(event.points[0])));
    }
  }

  function render(plot, data, layout) {
    const narrow = plot.clientWidth < 400; // the buttons would lie on the figure's own words
    Plotly.react(plot, data, {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      ...layout,
      font,
      hoverlabel: hover,
      dragmode: coarse ? false : "zoom", // on a phone a finger scrolls the page
    }, { ...config, displayModeBar: narrow ? false : "hover" });
  }

  function shown(trace, client, shapes) {
    const method = typeof trace.meta === "string" ? trace.meta : null;
    const result = { ...trace, visible: !(method !== null && hidden.has(method)) };
    if (client === null) return result;
    if (trace.meta && trace.meta.order) {
      const at = trace.meta.order.indexOf(client);
      if (at >= 0) for (const axis of trace.meta.axes) shapes.push(frame(axis, at));
    } else if (trace.customdata) {
      const at = trace.customdata.findIndex((entry) => entry[0] === client);
      if (at >= 0) {
        const faint = trace.mode === "lines" ? 0 : 0.3;
        if (trace.mode === "lines") result.mode = "lines+markers";
        result.selectedpoints = [at];
        result.selected = { marker: { opacity: 1, ...(trace.type === "scatter" ? { size: 13 } : {}) } };
        result.unselected = { marker: { opacity: faint } };
      }
    }
    return result;
  }

  function frame(axis, at) {
    const other = axis === "x" ? "y" : "x";
    return {
      type: "rect",
      [`${axis}0`]: at - 0.5, [`${axis}1`]: at + 0.5,
      [`${other}0`]: 0, [`${other}1`]: 1, [`${other}ref`]: "paper",
      line: { color: "#E69F00", width: 2 },
    };
  }

  function clientOf(point) {
    const order = point.data.meta && point.data.meta.order;
    if (order) return order[point.pointNumber[point.data.meta.axes[0] === "x" ? 1 : 0]];
    return point.customdata ? point.customdata[0] : null;
  }

  function redraw(keep = () => true) {
    for (const plot of drawn) if (keep(plot)) draw(plot);
  }

  // -- choosing --------------------------------------------------------------------------------

  for (const select of all("select[data-figure]")) {
    select.addEventListener("change", () => {
      views[select.dataset.figure] = Number(select.value);
      redraw((plot) => plot.dataset.figure === select.dataset.figure);
      if (select.dataset.figure.endsWith("matrix")) showClient(groupOf(select));
    });
  }

  for (const button of all(".legend [data-method]")) {
    button.addEventListener("click", () => {
      if (!hidden.delete(button.dataset.method)) hidden.add(button.dataset.method);
      showMethods();
    });
  }

  for (const button of all(".legend .all")) {
    button.addEventListener("click", () => {
      const methods = all("[data-method]", button.parentElement).map((other) => other.dataset.method);
      const hide = !methods.some((method) => hidden.has(method));
      for (const method of methods) if (hide) hidden.add(method); else hidden.delete(method);
      showMethods();
    });
  }

  function showMethods() {
    for (const button of all(".legend [data-method]")) {
      button.setAttribute("aria-pressed", !hidden.has(button.dataset.method));
    }
    for (const row of all("tr[data-method]")) {
      row.classList.toggle("off", hidden.has(row.dataset.method));
    }
    groups.forEach((_, index) => showClient(index));
    redraw();
  }

  for (const select of all("select.pick")) {
    select.addEventListener("change", () => {
      pick(groupOf(select), select.value === "" ? null : Number(select.value));
    });
  }

  function pick(index, client) {
    if (client === undefined || client === null && picked[index] === null) return;
    picked[index] = client;
    const select = document.querySelector(`.client[data-group="${index}"] select`);
    if (select) select.value = client === null ? "" : String(client);
    showClient(index);
    redraw((plot) => groupOf(plot) === index);
  }

  function make(tag, text, parent) {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text; // names are the user's: never as HTML
    if (parent) parent.append(element);
    return element;
  }

  function showClient(index) {
    const box = document.querySelector(`.client[data-group="${index}"] .picked`);
    const client = picked[index];
    if (!box) return;
    box.replaceChildren();
    const about = groups[index].clients;
    if (client === null || client >= about.names.length) return;
    const number = (value) => value.toLocaleString("en");
    const domain = about.domains ? `, domain ${about.domains[client]}` : "";
    make("p", `Client ${about.names[client]}${domain}: ${number(about.n_train[client])} training and ${number(about.n_test[client])} test samples.`, box);
    if (about.classes) {
      const held = about.classes[client].map(([name, n]) => `${name}: ${number(n)}`);
      make("p", `Classes: ${held.join(", ")}.`, box);
    }
    const scroll = make("div", undefined, box);
    scroll.className = "scroll";
    scroll.tabIndex = 0;
    const table = make("table", undefined, scroll);
    const head = make("tr", undefined, make("thead", undefined, table));
    for (const title of ["Method", "Last 10 rounds", "Best on test", `Gain over ${about.over}`]) {
      const cell = make("th", undefined, head);
      cell.scope = "col";
      make("span", title, cell);
    }
    const body = make("tbody", undefined, table);
    for (const method of about.methods) {
      const row = make("tr", undefined, body);
      make("th", method.label, row).scope = "row";
      make("td", fixed(method.last10[client], about.digits), row);
      make("td", fixed(method.best[client], about.digits), row);
      make("td", signed(method.gain && method.gain[client], about.digits), row);
    }
    const grid = make("div", undefined, box);
    grid.className = "panels";
    // All places first, then the plots: a plot takes the width its place has when it is drawn.
    const plots = [...curves(index, client, grid), ...weights(index, client, grid)];
    for (const draw of plots) draw();
  }

  // A small plot in the picked client's box; returns what draws it.
  function small(parent, title, data, layout) {
    const part = make("div", undefined, parent);
    part.className = layout.type === "category" ? "part" : "part wide";
    make("p", title, part);
    const plot = make("div", undefined, part);
    plot.className = "plot";
    plot.style.height = "240px";
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", title);
    const axis = (text) => ({ automargin: true, title: { text } });
    return () => render(plot, data, {
      margin: { l: 8, r: 8, t: 8, b: 8 },
      showlegend: false,
      hovermode: "closest",
      xaxis: { ...axis(layout.x), type: layout.type },
      yaxis: { ...axis(layout.y), zeroline: layout.type === "category" },
    });
  }

  function curves(index, client, parent) {
    const { clients, styles } = groups[index];
    const data = clients.methods.filter((method) => method.curves && !hidden.has(method.label)).map((method) => ({
      type: "scatter",
      mode: "lines",
      x: method.rounds,
      y: method.curves.map((row) => row[client]),
      text: method.rounds.map(() => escape(method.label)),
      line: { color: styles[method.label][0], dash: styles[method.label][1], width: 2 },
      hovertemplate: `%{text}, round %{x}: %{y:.${clients.digits}f}<extra></extra>`,
    }));
    const axes = { x: "round", y: clients.axis, type: "linear" };
    return data.length ? [small(parent, "Its score over the rounds", data, axes)] : [];
  }

  // plotly reads a little HTML.
  function escape(text) {
    return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }

  function fixed(value, digits) {
    return value === null || value === undefined ? "–" : value.toFixed(digits);
  }

  function signed(value, digits = 1) {
    const text = fixed(value, digits).replace("-", "−");
    return text === "–" || text.startsWith("−") ? text : `+${text}`;
  }

  // Row and column of A of one client, of the run that the matrix shows.
  function weights(index, client, parent) {
    const name = Object.keys(groups[index].figures).find((id) => id.endsWith("matrix"));
    if (!name) return [];
    const trace = groups[index].figures[name][0][views[name] || 0].data[0];
    const at = trace.meta ? trace.meta.order.indexOf(client) : -1;
    if (at < 0) return [];
    const plots = [];
    const row = trace.z[at], column = trace.z.map((line) => line[at]);
    for (const [title, values] of [
      ["Whom it weighs more or less than at the start: its row of A", row],
      ["Who weighs it more or less: its column of A", column],
    ]) {
      const met = values.map((value, k) => [value, trace.x[k]]).filter(([value]) => value !== null);
      met.sort((a, b) => b[0] - a[0]);
      if (!met.length) {
        make("p", `${title}: it met nobody.`, parent);
        continue;
      }
      plots.push(small(parent, title, [{
        type: "bar",
        x: met.map(([, other]) => other),
        y: met.map(([value]) => value),
        marker: { color: met.map(([value]) => (value >= 0 ? "#0072B2" : "#D55E00")) },
        hovertemplate: "client %{x}: %{y:+.4f}<extra></extra>",
      }], { x: "client", y: "change", type: "category" }));
    }
    return plots;
  }

  // -- drawing: when a plot comes near the screen, and all of them for the printer ---------------

  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        near.unobserve(entry.target);
        draw(entry.target);
      }
    }
  }, { rootMargin: "800px" });
  const plots = all(".plot[data-figure]");
  for (const plot of plots) near.observe(plot);

  addEventListener("beforeprint", () => {
    for (const plot of plots) {
      if (!drawn.has(plot)) draw(plot);
      Plotly.relayout(plot, { width: plot.classList.contains("wide") ? 660 : 320 });
    }
  });
  addEventListener("afterprint", () => {
    for (const plot of plots) Plotly.relayout(plot, { width: null, autosize: true });
  });
  document.documentElement.dataset.ready = "yes";
})();
