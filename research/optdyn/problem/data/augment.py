"""Random crops and flips of images on the device, pure functions of a seed an example."""

import jax
import jax.numpy as jnp


def crop(key: jax.Array, image: jax.Array) -> jax.Array:
    """Returns a random window, (H, W, C), of the image padded with zeros by an eighth of a side."""
    padding = jnp.array(image.shape[:2]) // 8
    y, x = jax.random.randint(key, (2,), 0, 2 * padding + 1)
    widths = [(size // 8, size // 8) for size in image.shape[:2]]
    return jax.lax.dynamic_slice(jnp.pad(image, [*widths, (0, 0)]), (y, x, 0), image.shape)


def flip(key: jax.Array, image: jax.Array) -> jax.Array:
    """Returns the image (H, W, C) or, with probability 1/2, its mirror image."""
    return jnp.where(jax.random.bernoulli(key), image[:, ::-1], image)


def augment(name: str, seeds: jax.Array, images: jax.Array) -> jax.Array:
    """Returns `images` (B, H, W, C) under the augmentation `name`, with seeds (B,)."""
    parts = [part for part in (crop, flip) if part.__name__ in name.split("_")]

    def one(seed: jax.Array, image: jax.Array) -> jax.Array:
        keys = jax.random.split(jax.random.key(seed), len(parts))
        for key, part in zip(keys, parts, strict=True):
            image = part(key, image)
        return image

    return jax.vmap(one)(seeds, images) if parts else images
