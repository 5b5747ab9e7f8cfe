(() => {
  "use strict";
  // How far the run is, asked for every few seconds while somebody looks.
  const EVERY = 4000;
  const box = document.querySelector(".live");

  async function look() {
    if (!document.hidden) {
      try {
        const answer = await fetch("progress.json");
        if (!answer.ok) throw new Error(answer.statusText);
        show((await answer.json()).banner);
      } catch {
        box.querySelector(".now").textContent = "The live page is no longer served; what stands here is the last that was seen.";
        return;
      }
    }
    setTimeout(look, EVERY);
  }

  function show(banner) {
    box.className = `live ${banner.state}`;
    box.querySelector(".now").textContent = banner.facts.join(" · ");
    box.querySelector("progress").value = banner.share;
    box.querySelector(".warnings").replaceChildren(...banner.warnings.map((line) => {
      const item = document.createElement("li");
      item.textContent = line;
      return item;
    }));
    box.querySelector(".newer").hidden = banner.rounds === Number(box.dataset.rounds);
  }

  setTimeout(look, EVERY);
})();
