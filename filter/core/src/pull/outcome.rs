//! What became of a call.

/// What became of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A snapshot that was not known.
    News,
    /// Nothing has come within the time to wait.
    Unchanged,
    /// A snapshot that was known, or that another one has superseded.
    Old,
    /// A delta on something that is not known.
    Gap,
    /// The sidecar wants another token.
    Unauthorized,
    /// The sidecar knows no such path.
    NotFound,
    /// Another status.
    Status,
    /// An answer that is no snapshot.
    Malformed,
    /// A snapshot of another version of the format.
    Version,
    /// No answer.
    Unreachable,
    /// The shared queue did not take the snapshot.
    Lost,
}

impl Outcome {
    /// The value of the label `outcome`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::News => "news",
            Self::Unchanged => "unchanged",
            Self::Old => "old",
            Self::Gap => "gap",
            Self::Unauthorized => "unauthorized",
            Self::NotFound => "not_found",
            Self::Status => "status",
            Self::Malformed => "malformed",
            Self::Version => "version",
            Self::Unreachable => "unreachable",
            Self::Lost => "lost",
        }
    }

    /// Whether nothing came of it that is of any use.
    #[must_use]
    pub fn is_failure(self) -> bool {
        !matches!(self, Self::News | Self::Unchanged | Self::Old)
    }
}
