// sharp as a contender: `node sharp_images.js usual|best PHOTO IMAGES FOLDER SIZES IN_FLIGHT`.
import fs from 'node:fs';
import path from 'node:path';
import sharp from 'sharp';

const QUALITY = 85;
const [way, photo, images, folder, sizes, inFlight] = process.argv.slice(2);
const variants = JSON.parse(sizes);

const fitted = ({ width, height }) =>
  height
    ? { width, height, fit: 'cover', position: sharp.strategy.attention }
    : { width, withoutEnlargement: true };
const target = (number, name) => path.join(folder, `${number}-${name}.webp`);

const ways = {
  // As its documentation and most answers show it: a clone for each size, all at once, everything else left as it is.
  async usual(number) {
    const picture = sharp(photo).rotate();
    await Promise.all(
      variants.map((size) =>
        picture.clone().resize(fitted(size)).webp({ quality: QUALITY }).toFile(target(number, size.name)),
      ),
    );
  },
  // As well as it can be done: decoded once, in the largest size; the others are made of that.
  async best(number) {
    const largest = variants[0];
    const { data, info } = await sharp(photo).rotate().resize(fitted(largest)).raw().toBuffer({ resolveWithObject: true });
    const raw = { width: info.width, height: info.height, channels: info.channels };
    await Promise.all(
      variants.map((size) => {
        const picture = sharp(data, { raw });
        const webp = { quality: QUALITY, effort: size.effort };
        return (size === largest ? picture : picture.resize(fitted(size))).webp(webp).toFile(target(number, size.name));
      }),
    );
  },
};

// Seconds until so many are made. As many more are begun as can be in flight, so that no core waits for the last one.
async function make(from, total) {
  const numbers = Array.from({ length: total + Number(inFlight) }, (_, index) => from + index).values();
  const start = process.hrtime.bigint();
  let made = 0, seconds = 0;
  const work = async () => {
    for (const number of numbers) {
      await ways[way](number);
      if (++made === total) seconds = Number(process.hrtime.bigint() - start) / 1e9;
    }
  };
  await Promise.all(Array.from({ length: Number(inFlight) }, work));
  return seconds;
}

const total = Number(images);
await make(0, 2); // both cores have warmed up
const seconds = await make(0, total);
const bytes = variants.reduce((sum, { name }) => sum + fs.statSync(target(0, name)).size, 0);
console.log(JSON.stringify({ rate: total / seconds, bytes }));
