// Write the licences of the bundled packages beside the bundle.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";

const lock = JSON.parse(readFileSync("package-lock.json", "utf8")).packages;
const bundled = Object.keys(lock).filter((path) => path && !lock[path].dev && !lock[path].devOptional).sort();
const texts = bundled.map((path) => {
  const file = readdirSync(path).find((name) => /^licen[cs]e/i.test(name));
  const { name, version } = JSON.parse(readFileSync(`${path}/package.json`, "utf8"));
  return `${name} ${version} (${lock[path].license})\n\n${readFileSync(`${path}/${file}`, "utf8").trim()}\n`;
});
writeFileSync("../codemirror.licences.txt", texts.join(`\n${"-".repeat(80)}\n\n`));
