//! The certificates by which servers are trusted.

use std::ffi::OsString;
use std::path::Path;

use ureq::tls::{Certificate, PemItem, RootCerts, parse_pem};

use offshoot_core::error::{Error, Result};

/// The environment's variable that names a file of certificates, in place of Mozilla's.
pub(super) const VARIABLE: &str = "SSL_CERT_FILE";

/// The certificates in a file, or Mozilla's where none is named.
///
/// # Errors
///
/// The file cannot be read, or has no certificate.
pub(super) fn roots(file: Option<OsString>) -> Result<RootCerts> {
    let Some(file) = file.filter(|file| !file.is_empty()) else { return Ok(RootCerts::WebPki) };
    let path = Path::new(&file);
    let wrong = |why: String| Error::format(path, format!("certificates of {VARIABLE}: {why}"));
    let text = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let mut certificates: Vec<Certificate<'static>> = Vec::new();
    for item in parse_pem(&text) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| wrong(error.to_string()))? {
            certificates.push(certificate);
        }
    }
    match certificates.is_empty() {
        true => Err(wrong("expected at least one in PEM, found none".to_owned())),
        false => Ok(RootCerts::new_with_certs(&certificates)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_those_of_the_named_file() {
        let folder = tempfile::TempDir::new().unwrap();
        let of = |text: &str| {
            let file = folder.path().join("roots.pem");
            std::fs::write(&file, text).unwrap();
            roots(Some(file.into()))
        };
        assert!(matches!(roots(None).unwrap(), RootCerts::WebPki));
        assert!(matches!(roots(Some(OsString::new())).unwrap(), RootCerts::WebPki));
        let one = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        match of(&one.repeat(2)).unwrap() {
            RootCerts::Specific(certificates) => assert_eq!(certificates.len(), 2),
            other => panic!("{other:?}"),
        }
        let error = of("none").unwrap_err().to_string();
        assert!(error.contains("roots.pem") && error.contains("expected at least one in PEM"), "{error}");
        let error = roots(Some(folder.path().join("none.pem").into())).unwrap_err().to_string();
        assert!(error.contains("none.pem") && error.contains(VARIABLE), "{error}");
    }
}
