//! Bank account numbers (ISO 13616): country, check digits, and as many characters as the country has.

use super::{byte, separators};

/// The countries of the SWIFT IBAN registry and the lengths of their numbers.
const COUNTRIES: &str = "AD24AE23AL28AT20AZ28BA20BE16BG22BH22BI27BR29BY28CH21CR22CY28CZ24DE22DJ27DK18DO28EE20EG29ES24FI18\
    FK18FO18FR27GB22GE22GI23GL18GR27GT28HN28HR21HU28IE22IL23IQ23IS26IT27JO30KW30KZ20LB28LC32LI21LT20LU20LV21LY25MC27MD24\
    ME22MK19MN20MR27MT31MU30NI28NL18NO15OM23PK24PL28PS29PT25QA29RO24RS22RU33SA24SC31SD18SE24SI19SK24SM27SO23ST25SV28TL23\
    TN24TR26UA29VA22VG24XK20YE30";
/// Every number has more digits than this, and most words fewer.
const DIGITS: usize = 8;

/// The end of the account number at this place.
pub(super) fn find(text: &str, at: usize) -> Option<usize> {
    let length = length(text.as_bytes().get(at..at + 4)?)?;
    let (mut taken, mut digits, mut next) = ([0; 34], 0, at);
    for (index, place) in taken.iter_mut().take(length).enumerate() {
        // The country and its check digits always stand together.
        let here = if index < 4 || byte(text, next).is_ascii_alphanumeric() { next } else { separators(text, next, 2) };
        *place = byte(text, here).to_ascii_uppercase();
        if !place.is_ascii_alphanumeric() {
            return None;
        }
        digits += usize::from(place.is_ascii_digit());
        next = here + 1;
    }
    let right = digits >= DIGITS && remainder(taken.get(..length)?) == 1;
    (right && !byte(text, next).is_ascii_alphanumeric()).then_some(next)
}

/// How long the number is that begins like this.
fn length(first: &[u8]) -> Option<usize> {
    let [a, b, c, d] = first else { return None };
    if !c.is_ascii_digit() || !d.is_ascii_digit() {
        return None;
    }
    let (a, b) = (a.to_ascii_uppercase(), b.to_ascii_uppercase());
    let entry = COUNTRIES.as_bytes().chunks_exact(4).find(|entry| entry[0] == a && entry[1] == b)?;
    Some(usize::from(entry[2] - b'0') * 10 + usize::from(entry[3] - b'0'))
}

/// The remainder of 97 after the first four characters have moved to the end (ISO 7064).
fn remainder(iban: &[u8]) -> u32 {
    let (first, rest) = iban.split_at(4);
    rest.iter().chain(first).fold(0, |sum, one| match one {
        b'0'..=b'9' => (sum * 10 + u32::from(one - b'0')) % 97,
        _ => (sum * 100 + u32::from(one - b'A') + 10) % 97,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::tests::found;

    #[test]
    fn finds_the_numbers_of_many_countries() {
        for iban in [
            "DE89370400440532013000",
            "DE89 3704 0044 0532 0130 00",
            "de89 3704 0044 0532 0130 00",
            "DE89-3704-0044-0532-0130-00",
            "DE89\u{a0}3704\u{a0}0044\u{a0}0532\u{a0}0130\u{a0}00",
            "GB29 NWBK 6016 1331 9268 19",
            "NL91ABNA0417164300",
            "FR14 2004 1010 0505 0001 3M02 606",
            "NO93 8601 1117 947",
            "MT84MALT011000012345MTLCAST001S",
            "CH93 0076 2011 6238 5295 7",
            "BE68 5390 0754 7034",
            "AT611904300234573201",
            "PL61 1090 1014 0000 0712 1981 2874",
        ] {
            assert_eq!(found(iban), [("iban", iban)]);
            assert_eq!(found(&format!("IBAN:{iban}, BIC")), [("iban", iban)]);
            assert_eq!(found(&format!("{iban} is it")), [("iban", iban)]);
        }
    }

    #[test]
    fn wrong_numbers_are_none() {
        for text in [
            "DE88370400440532013000",
            "DE8937040044053201300",
            "DE893704004405320130000",
            "XX89370400440532013000",
            "xDE89370400440532013000",
            "DE 89370400440532013000",
            "DE89\n3704\n0044\n0532\n0130\n00",
            "DE89",
            "DE8",
        ] {
            assert!(found(text).iter().all(|(kind, _)| *kind != "iban"), "{text}");
        }
    }

    #[test]
    fn no_country_has_a_number_too_long_to_be_read() {
        for entry in COUNTRIES.as_bytes().chunks_exact(4) {
            let text = format!("{}{}00", char::from(entry[0]), char::from(entry[1]));
            let length = length(text.as_bytes()).expect("it is in the table");
            assert!((15..=34).contains(&length), "{text}");
        }
        assert_eq!(COUNTRIES.len() % 4, 0);
    }
}
