//! Prose in several scripts, from a seed.

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;

const ENGLISH: &str = "time light water letter answer table number garden winter engine window paper story river \
    market signal memory bridge summer corner method season travel pocket silver record moment figure reason \
    simple early clear quiet heavy narrow open small round common explains follows carries reaches returns \
    changes holds begins measures about under before between against without their which every other since";
const CYRILLIC: &str = "время вода письмо ответ таблица число сад зима окно бумага история река рынок память мост \
    лето угол метод дорога запись минута причина простой ранний ясный тихий узкий открытый общий объясняет \
    следует несёт меняет держит начинает перед между против каждый другой потому";
const ACCENTED: &str = "été forêt garçon élève naïve façade über schön grün müde größe straße señor mañana corazón \
    niño canción después maçã coração ação português żółty łódź příliš žluťoučký kůň ångström smörgås fjärran \
    też będzie działać où çà déjà vécu île hôtel âme cœur";
const EMOJI: &str = "😀 🚀 🌍 🎉 🔥 💡 📦 🧪 🐍 🦀 👩‍💻 👍🏽 ❤️ 🇪🇺 🏳️‍🌈 ✅ ⚙️ 🧠";
const CHINESE: &str = "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会可主发年动同工也能下过子说产种面\
    而方后多定行学法所民得经十三之进着等部度家电力里如水化高自二理起小物现实加量都两体制机当使点从业本去把性好应开它合还\
    因由其些然前外天政四日那社义事平形相全表间样与关各重新线内数正心反你明看原又么利比或但质气第向道命此变条只没结解问";

/// Scripts other than English, each as likely.
const FOREIGN: [Script; 4] = [Script::Chinese, Script::Cyrillic, Script::Accented, Script::Emoji];

#[derive(Clone, Copy, Debug)]
enum Script {
    English,
    Chinese,
    Cyrillic,
    Accented,
    Emoji,
}

/// Writes prose of a vocabulary that is split once.
#[derive(Debug)]
pub struct Prose {
    english: Vec<&'static str>,
    cyrillic: Vec<&'static str>,
    accented: Vec<&'static str>,
    emoji: Vec<&'static str>,
    chinese: Vec<char>,
}

impl Prose {
    /// The vocabulary of all scripts.
    pub fn new() -> Self {
        let words = |text: &'static str| text.split_whitespace().collect();
        Self {
            english: words(ENGLISH),
            cyrillic: words(CYRILLIC),
            accented: words(ACCENTED),
            emoji: words(EMOJI),
            chinese: CHINESE.chars().filter(|char| !char.is_whitespace()).collect(),
        }
    }

    /// A text of about `bytes` bytes (never less), a third of it in sentences that are not ASCII.
    pub fn text(&self, rng: &mut SmallRng, bytes: usize) -> String {
        let mut text = String::with_capacity(bytes + 256);
        while text.len() < bytes {
            let foreign = rng.random_range(0..3) == 0;
            let script = if foreign { *FOREIGN.choose(rng).unwrap_or(&Script::Emoji) } else { Script::English };
            let end = text.len() + rng.random_range(60..180usize).min(bytes - text.len());
            self.sentence(rng, script, end, &mut text);
        }
        text
    }

    /// English words of exactly `bytes` bytes.
    pub fn ascii(&self, rng: &mut SmallRng, bytes: usize) -> String {
        let mut text = String::with_capacity(bytes + 32);
        while text.len() < bytes {
            text.push_str(self.english.choose(rng).unwrap_or(&"word"));
            text.push(' ');
        }
        text.truncate(bytes);
        text
    }

    fn sentence(&self, rng: &mut SmallRng, script: Script, end: usize, text: &mut String) {
        while text.len() < end {
            let word = match script {
                Script::English => self.english.choose(rng),
                Script::Cyrillic => self.cyrillic.choose(rng),
                Script::Accented => self.accented.choose(rng),
                // An emoji between words, as people write.
                Script::Emoji => {
                    if rng.random() {
                        self.emoji.choose(rng)
                    } else {
                        self.accented.choose(rng)
                    }
                }
                Script::Chinese => {
                    text.extend(self.chinese.choose(rng));
                    continue;
                }
            };
            text.push_str(word.unwrap_or(&"word"));
            text.push(' ');
        }
        text.push_str(if matches!(script, Script::Chinese) { "。" } else { ". " });
    }
}

impl Default for Prose {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_third_of_the_text_is_not_ascii() {
        let prose = Prose::new();
        let text = prose.text(&mut SmallRng::seed_from_u64(1), 1_000_000);
        let (mut foreign, mut all) = (0, 0);
        for sentence in text.split_inclusive(['.', '。']) {
            all += sentence.len();
            if !sentence.is_ascii() {
                foreign += sentence.len();
            }
        }
        let share = foreign as f64 / all as f64;
        assert!((0.30..0.37).contains(&share), "{share}");
        assert_eq!(prose.ascii(&mut SmallRng::seed_from_u64(1), 2048).len(), 2048);
    }
}
