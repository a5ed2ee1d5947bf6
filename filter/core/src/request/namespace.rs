//! The cache partition: requests of different partitions never share a prefix.

use xxhash_rust::xxh3::xxh3_64;

/// A member of the body that names a part of the partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    CacheSalt,
    ExtraKey,
    LoraPath,
    LoraId,
}

/// The fields as far as they are set. Only a length and a hash of each is held, so a huge value costs nothing.
#[derive(Debug, Default)]
pub(super) struct Namespace {
    salt: Option<(u64, u64)>,
    extra_key: Option<(u64, u64)>,
    lora_path: Option<(u64, u64)>,
    lora_id: Option<(u64, u64)>,
}

impl Namespace {
    /// Sets a field; an empty value unsets it.
    pub(super) fn set(&mut self, field: Field, value: &[u8]) {
        let slot = match field {
            Field::CacheSalt => &mut self.salt,
            Field::ExtraKey => &mut self.extra_key,
            Field::LoraPath => &mut self.lora_path,
            Field::LoraId => &mut self.lora_id,
        };
        *slot = (!value.is_empty()).then(|| (value.len() as u64, xxh3_64(value)));
    }

    /// The partition's name, `None` if no field is set. Presence and length go into it, so that neither moving bytes
    /// from one field to the next nor the same bytes in another field give the same name.
    pub(super) fn id(&self) -> Option<u64> {
        let fields = [self.salt, self.extra_key, self.lora_path, self.lora_id];
        if fields.iter().all(Option::is_none) {
            return None;
        }
        let mut bytes = Vec::with_capacity(fields.len() * 17);
        for field in fields {
            let (len, hash) = field.unwrap_or_default();
            bytes.push(u8::from(field.is_some()));
            bytes.extend_from_slice(&len.to_le_bytes());
            bytes.extend_from_slice(&hash.to_le_bytes());
        }
        Some(xxh3_64(&bytes))
    }
}
