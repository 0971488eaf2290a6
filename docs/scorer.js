// Order of search results: guides first, then the start pages; lists of everything (changelog, benchmarks, walks) last.
const OTHER_PAGES = { "changelog": -20, "benchmarks": -20, "walks": -20, "promises": -12, "clock": -12, "commands": -6 };
const FOLDERS = { "guides": 14, "start": 16, "gallery": 6, "algorithms": 4, "reference": 2, "design": -12 };

var Scorer = {
  score: (result) => {
    const [docname, , , , score] = result;
    const [folder, ...rest] = docname.split("/");
    return score + (FOLDERS[folder] ?? 0) + (OTHER_PAGES[rest.at(-1)] ?? 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
