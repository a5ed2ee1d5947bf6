//! Whose certificates are believed.

use std::{ffi::OsString, fmt, path::Path, sync::Arc};

use crate::config::ConfigError;

/// The certificate authorities that sign what `https` and `grpcs` hosts show: the system's, or those of a file.
#[derive(Clone, Default)]
pub struct Trust(Option<Arc<[u8]>>);

impl Trust {
    /// The authorities in the file that is given, or the system's.
    pub(crate) fn given(file: Option<OsString>) -> Result<Self, ConfigError> {
        match file.filter(|path| !path.is_empty()) {
            Some(path) => Self::in_file(Path::new(&path)),
            None => Ok(Self::default()),
        }
    }

    /// The authorities in a file, in place of the system's.
    ///
    /// # Errors
    /// [`ConfigError::CaFile`] when it cannot be read or holds no certificate in PEM.
    pub fn in_file(path: &Path) -> Result<Self, ConfigError> {
        let refused = |problem: String| ConfigError::CaFile { path: path.to_owned(), problem };
        let pem = std::fs::read(path).map_err(|error| refused(error.to_string()))?;
        let found = reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| refused(error.to_string()))?;
        if found.is_empty() {
            return Err(refused("it holds no certificate".into()));
        }
        Ok(Self(Some(pem.into())))
    }

    /// The file's content, PEM; none for the system's authorities.
    pub(crate) fn pem(&self) -> Option<&[u8]> {
        self.0.as_deref()
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Trust(a file)" } else { "Trust(the system)" })
    }
}
